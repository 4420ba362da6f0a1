"""Tables and figures of the attacks on a study."""
