"""The live screen of `engine top`, made with Textual, which only a terminal loads."""
