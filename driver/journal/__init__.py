"""The driver's durable state: the events, the state that results from them, the journal that stores them, and the lease."""
