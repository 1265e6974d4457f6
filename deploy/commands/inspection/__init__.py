"""Commands that show the state of a stream and change nothing: status, lag, audit."""
