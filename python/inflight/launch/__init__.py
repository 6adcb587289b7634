"""Starting and supervising processes: a pure plan, and the loop that carries it out."""
