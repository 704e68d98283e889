"""The commands: each parses, calls one verb, and prints; nothing else. `app` has what they share."""
