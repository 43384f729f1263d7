"""What each layer costs when it is rounded, or gives when it is put back to float."""
