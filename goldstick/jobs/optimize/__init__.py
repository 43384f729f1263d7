"""A loaded model rearranged to run faster, each change proven before it stays."""
