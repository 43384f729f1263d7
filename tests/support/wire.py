"""Two machines in one: network namespaces that only a wire joins, which delays what it carries and can be cut.

The kernel's own delay (``tc netem``) is not in every kernel. Here each namespace has a TUN device, and what one is
given this process hands to the other, later. Needs Linux, and the rights of root.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import select
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from types import TracebackType

_TUNSETIFF, _TUN, _WITHOUT_HEADER = 0x400454CA, 0x0001, 0x1000
_MTU = 16000
#: Name of the device in each namespace.
DEVICE = "wire0"
#: Address of each of the two machines.
ADDRESSES = ("10.77.0.1", "10.77.0.2")


class Wire:
    """Two namespaces and what joins them, for as long as the context lasts.

    Args:
        delay: Seconds that a packet takes from one to the other.

    Attributes:
        namespaces: Their names.
        carried: Bytes that were carried, with what TCP and IP add.
    """

    def __init__(self, delay: float) -> None:
        self.namespaces = tuple(f"machine{number}-{os.getpid()}" for number in range(2))
        self.carried = 0
        self._delay, self._cut, self._ends = delay, threading.Event(), list[int]()
        self._stop = threading.Event()
        self._carrier = threading.Thread(target=self._carry, daemon=True)

    def __enter__(self) -> Wire:
        for name, address in zip(self.namespaces, ADDRESSES, strict=True):
            self._ends.append(_device(name, address))
        self._carrier.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stop.set()
        self._carrier.join()
        for end in self._ends:
            os.close(end)
        for name in self.namespaces:
            _ip("netns", "del", name)

    def cut(self) -> None:
        """Carry nothing from now on; nobody is told."""
        self._cut.set()

    def inside(self, machine: int, command: Sequence[str]) -> list[str]:
        """The command that runs another in a namespace."""
        return ["ip", "netns", "exec", self.namespaces[machine], *command]

    def _carry(self) -> None:
        waiting: list[tuple[float, int, int, bytes]] = []
        number = 0
        while not self._stop.is_set():
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, _, end, packet = heapq.heappop(waiting)
                if not self._cut.is_set():
                    self.carried += len(packet)
                    os.write(end, packet)
            rest = min(0.05, waiting[0][0] - now) if waiting else 0.05
            for end in select.select(self._ends, [], [], rest)[0]:
                other = self._ends[1 - self._ends.index(end)]
                number += 1
                heapq.heappush(waiting, (time.monotonic() + self._delay, number, other, os.read(end, 65536)))


def _device(namespace: str, address: str) -> int:
    """Make a namespace with a device of an address; the descriptor through which its packets go and come."""
    _ip("netns", "add", namespace)
    end = os.open("/dev/net/tun", os.O_RDWR)
    name = f"gs{namespace[7]}{os.getpid()}"[:15]
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", name.encode(), _TUN | _WITHOUT_HEADER))
    _ip("link", "set", name, "netns", namespace, "name", DEVICE)
    inside = ("-n", namespace)
    _ip(*inside, "addr", "add", f"{address}/24", "dev", DEVICE)
    _ip(*inside, "link", "set", DEVICE, "mtu", str(_MTU), "up")
    _ip(*inside, "link", "set", "lo", "up")
    return end


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
