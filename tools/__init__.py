"""Tools for the maintainers of goldstick; not part of the installed package."""
