"""The work, one stage a file; no stage knows another, or who runs it."""
