"""Builds, trains, measures and exports the reference model bundled with goldstick."""
