"""The broker: serves connections and admin requests; the only room that joins storage, control and wire."""
