"""`hetfl bench --peers`: FedAvg beside FedJAX and the loop, what only we can do, and how far it is from the floor."""
