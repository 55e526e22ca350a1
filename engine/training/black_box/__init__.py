"""The black box of a training loop, which writes failing steps to a folder; reading and replaying such steps."""
