"""Programs: a job in the words of each trainer."""
