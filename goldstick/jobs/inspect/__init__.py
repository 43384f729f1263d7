"""What a compressed checkpoint holds, by its report and by its files."""
