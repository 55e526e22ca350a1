"""The black box of a training loop: steps that go wrong, written to a folder, read and replayed."""
