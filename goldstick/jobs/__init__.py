"""One room for each thing a user asks for."""
