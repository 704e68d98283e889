"""Where units are worked; nobody else imports Dask."""

from dataprep.cluster.local import Here
from dataprep.cluster.mapping import ATTEMPTS, WINDOW, Cluster, Reporter

__all__ = ["ATTEMPTS", "WINDOW", "Cluster", "Here", "Reporter"]
