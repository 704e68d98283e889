"""Who starts a program, and where: each renders text, and hands it over if it is asked to."""
