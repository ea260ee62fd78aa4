"""A client's view of a cluster: routes from name servers, requests to brokers."""
