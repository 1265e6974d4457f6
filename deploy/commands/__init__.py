"""The commands of `forebay`, a module each; groups have several."""
