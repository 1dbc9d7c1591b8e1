"""Wrong: answers at once, and does nothing."""

from service import serve

if __name__ == "__main__":
    serve(lambda client, key, order: (201, {"Content-Type": "application/json"}, "{}"))
