() => {
  const root = document.documentElement;
  const numbers = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
  const clear = (colour) => colour === "transparent" || (numbers(colour).length === 4 && numbers(colour)[3] === 0);
  const luminance = (colour) => {
    const [r, g, b] = numbers(colour).slice(0, 3).map((one) => one / 255).map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!clear(colour)) return colour;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches ? "rgb(18, 18, 18)" : "rgb(255, 255, 255)";
  };
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const shown = (element) => {
    const box = element.getBoundingClientRect();
    const style = getComputedStyle(element);
    return box.width > 1 && box.height > 1 && box.right > 0 && box.left < root.clientWidth && style.visibility === "visible" && Number(style.opacity) > 0 && style.clipPath === "none";
  };
  const texts = [...(document.querySelector("article") || document.body).querySelectorAll("*")].filter((element) => !element.closest("script, style, noscript, .modebar")
    && [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim()) && shown(element));
  const pale = texts.map((element) => {
    const style = getComputedStyle(element);
    const ink = element instanceof SVGElement ? style.fill : style.color;
    return { text: element.textContent.trim().slice(0, 40), contrast: contrast(ink, behind(element)) };
  }).filter((one) => one.contrast < 4);
  const charts = [...document.querySelectorAll(".plot, main svg[role=img], td.chart > svg")].map((chart) => {
    const drawing = chart.matches(".plot") ? chart.querySelector(".main-svg") : chart;
    const box = drawing ? drawing.getBoundingClientRect() : { width: 0, height: 0 };
    const room = chart.parentElement;
    const style = getComputedStyle(room);
    const wide = room.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return {
      name: chart.id || chart.getAttribute("aria-label") || chart.getAttribute("class"), width: box.width, height: box.height,
      share: box.width / wide, plot: chart.matches(".plot"), marks: drawing ? chart.querySelectorAll("path, rect, line, polyline, circle, image").length : 0,
    };
  });
  return {
    title: document.title, heading: (document.querySelector("h1") || { textContent: "" }).textContent.trim(),
    wide: root.scrollWidth, width: root.clientWidth, charts, pale, texts: texts.length,
    light: luminance(behind(document.body)), broken: [...document.images].filter((one) => one.naturalWidth === 0).map((one) => one.src),
  };
}
