"""What happened, told to the host after the transaction that made it so has committed.

emission    typed events on signals, for the host's subscribers and for metrics
metrics     what the events count, told to a backend: prometheus, statsd, opentelemetry, the host's own
exporter    what a supervisor's children count, on a port
exposition  the gauges as text that Prometheus scrapes
tracing     spans of attempts and jobs
reports     errors, for the host's reporters
logs        records with the step or job they were made in
"""
