"""``forebay dead-letters``: count, show and resend records that the job could not decode."""
