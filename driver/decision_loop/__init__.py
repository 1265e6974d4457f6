"""The decision loop: one thread that decides, makes events durable, and only then answers and acts."""
