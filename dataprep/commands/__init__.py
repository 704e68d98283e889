"""The commands, by what they work on; each parses nothing, calls one verb, and prints."""
