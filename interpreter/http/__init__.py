"""The HTTP side of the service: routes, who may call, requests in, answers and errors out."""
