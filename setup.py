"""The packages: this folder is `tapehead` itself, and setuptools finds no package whose own folder it is run in."""

from setuptools import find_packages, setup

inside = find_packages(include=["inspector*", "engine*", "widgets*", "commands*"])
setup(packages=["tapehead", *(f"tapehead.{name}" for name in inside)])
