"""How fast layers and whole networks run here."""
