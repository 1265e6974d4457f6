"""What a job gets, and how its runs are measured and its errors described."""
