"""Experiments as they are stated: the TOML file, its setting, its variants and its expectations."""
