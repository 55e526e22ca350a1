"""The live session behind a deck: it runs in a thread of its own, is told what to do, and tells what has happened."""
