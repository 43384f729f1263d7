"""A small encoder with a span head, trained on part of SQuAD 1.1: a real model to measure 8-bit encoders on."""
