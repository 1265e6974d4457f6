"""How cost grows: one size varies in each module, all else stays. Each gives a table and plots (docs/scaling.md)."""
