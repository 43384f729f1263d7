"""ResNets for CIFAR-10 as arXiv:1512.03385 has them: shortcuts without weights (option A), one linear layer."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from goldstick.evaluation import Preparation

PREPARATION = Preparation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.padding = (outputs - inputs) // 2
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x[:, :, :: self.stride, :: self.stride]
        shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, self.padding, self.padding))
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + shortcut)


class CifarResNet(nn.Module):
    """Three stages of ``blocks`` blocks of 16, 32 and 64 channels."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*[_Block(16, 16, 1) for _ in range(blocks)])
        self.layer2 = nn.Sequential(*[_Block(16 if i == 0 else 32, 32, 2 if i == 0 else 1) for i in range(blocks)])
        self.layer3 = nn.Sequential(*[_Block(32 if i == 0 else 64, 64, 2 if i == 0 else 1) for i in range(blocks)])
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(torch.relu(self.bn1(self.conv1(x))))))
        return self.linear(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


def read_resnet(directory: Path, blocks: int) -> CifarResNet:
    """The pre-trained model of 6 × ``blocks`` + 2 layers in ``directory``."""
    model = CifarResNet(blocks)
    model.load_state_dict(load_file(directory / f"resnet{6 * blocks + 2}.safetensors"))
    return model.eval()
