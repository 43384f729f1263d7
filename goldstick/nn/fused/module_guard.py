"""What a faster forward takes for granted of the modules that it does not call."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as of_all

from goldstick.kernels import cpu


class ModuleGuard:
    """The modules inside one, as they were found: which they are, their forwards, and no hook on any.

    Hooks of the module itself are none of them: they run whatever its forward does.

    Args:
        module: What a faster forward stands in for.
    """

    def __init__(self, module: nn.Module) -> None:
        inside = [child for child in module.modules() if child is not module]
        self._children = [(one._modules, dict(one._modules)) for one in (module, *inside)]
        self._forwards = [(child.__dict__, child.__dict__.get("forward")) for child in inside]

    def __bool__(self) -> bool:
        """Whether nothing inside was replaced, hooked or given another forward since."""
        if of_all._global_forward_hooks or of_all._global_forward_pre_hooks:
            return False
        for own, forward in self._forwards:
            if own["_forward_hooks"] or own["_forward_pre_hooks"] or own.get("forward") is not forward:
                return False
        return all(now == found for now, found in self._children)

    def holds(self) -> bool:
        """The same, asked in C++."""
        if of_all._global_forward_hooks or of_all._global_forward_pre_hooks:
            return False
        return bool(cpu._C.modules_unchanged(self._children, self._forwards))
