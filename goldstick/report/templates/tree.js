"use strict";
// Shows the modules whose name holds the searched words and whose severity is ticked, and what they lie in.
(function () {
  const search = document.getElementById("search");
  const boxes = Array.from(document.querySelectorAll("input[name=severity]"));
  const nodes = Array.from(document.querySelectorAll("[data-path]"));
  const opened = new Map(nodes.filter((node) => node.tagName === "DETAILS").map((node) => [node, node.open]));

  function update() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const ticked = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    const filtering = words.length > 0 || ticked.size < boxes.length;
    let shown = 0;
    // Children stand behind their parents, so from the end each node knows what it holds.
    const kept = new Set();
    for (const node of nodes.slice().reverse()) {
      const name = node.dataset.path.toLowerCase();
      const severity = node.dataset.severity;
      const found = words.every((word) => name.includes(word)) && (severity === "" ? ticked.size === boxes.length : ticked.has(severity));
      if (found) shown += 1;
      const visible = found || kept.has(node);
      node.hidden = !visible;
      if (visible && node.parentElement.closest("[data-path]")) kept.add(node.parentElement.closest("[data-path]"));
      if (node.tagName === "DETAILS") node.open = filtering ? kept.has(node) : opened.get(node);
    }
    document.getElementById("shown").textContent = filtering ? shown + " found" : "";
  }

  document.getElementById("controls").hidden = false;
  search.addEventListener("input", update);
  boxes.forEach((box) => box.addEventListener("change", update));
})();
