"""Writers with a watermark, as the Spark sink is one: clients and the check of what they wrote."""
