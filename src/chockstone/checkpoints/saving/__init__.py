"""From live state to a committed archive: snapshot, image, writer, and the background job."""
