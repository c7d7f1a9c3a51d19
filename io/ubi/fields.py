"""What the fields of UBI documents are called, and the columns of the log that is made of them."""

IMPRESSION = "impression"
"""The action of an event that says that a document was shown."""

QUERY_ID, USER_QUERY, OBJECT_ID, ACTION_NAME = "query_id", "user_query", "object_id", "action_name"
POSITION, CLICK = "position", "click"
OF_THE_QUERY = ("timestamp", "client_id", "application")
"""What else of a query's document goes with its page, as text."""

COLUMNS = (QUERY_ID, USER_QUERY, OBJECT_ID, POSITION, CLICK, *OF_THE_QUERY)
"""The columns of the log that is made of UBI documents."""
