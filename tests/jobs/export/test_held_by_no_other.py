"""What only the native format holds is refused by the others, which take the rest once that is left float."""

from __future__ import annotations

from pathlib import Path

import pytest

import goldstick
from goldstick.errors import FormatError
from goldstick.jobs.export.export_plan import plan_export
from tests.support.tiny_models import FAMILIES

pytestmark = pytest.mark.usefixtures("all_proofs_here")


def test_what_no_other_format_holds_is_named_with_the_way_out(tmp_path: Path) -> None:
    FAMILIES["vit"]().save_pretrained(tmp_path / "vit")
    goldstick.quantize(tmp_path / "vit", "rtn-w4a16", output=tmp_path / "made", proof="tensors")
    with pytest.raises(FormatError, match=r"not a convolution.* to no other as it is: quantize its source with .*excl"):
        plan_export(tmp_path / "made", "compressed-tensors")
    recipe = {
        "stages": [{"rtn": {"scheme": "w4a16", "targets": {"exclude": ["*patch_embeddings*"]}}}],
        "export": {"format": "native"},
    }
    goldstick.quantize(tmp_path / "vit", recipe, output=tmp_path / "kept", proof="tensors")
    assert plan_export(tmp_path / "kept", "compressed-tensors").format.name == "compressed-tensors"
