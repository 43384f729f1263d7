"""Programs that run checkpoints, run: do they load what goldstick writes, and answer what goldstick answers?"""

#: The model that comes with goldstick.
BUNDLED = "reference"
