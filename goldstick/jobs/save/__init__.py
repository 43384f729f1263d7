"""From a compressed network to a finished checkpoint: pieces, report, card, manifest."""
