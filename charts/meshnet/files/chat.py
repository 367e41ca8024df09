"""One chat request, as `helm test` sends it: ends with 0 when there was an answer."""

import json
import os
import sys
import urllib.error
import urllib.request

url = os.environ["TEST_URL"].rstrip("/") + "/chat/completions"
question = {"role": "user", "content": "Say hello."}
body = {"model": os.environ["TEST_MODEL"], "messages": [question], "max_tokens": 8}
headers = {"Content-Type": "application/json"}
if key := os.environ.get("TEST_KEYS", "").strip().partition("\n")[0].partition("#")[0].strip():
    headers["Authorization"] = f"Bearer {key}"
request = urllib.request.Request(url, json.dumps(body).encode(), headers)
# The mesh is in the cluster: no proxy is asked, whatever the environment says.
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    with opener.open(request, timeout=float(os.environ["TEST_SECONDS"])) as answer:
        text = json.load(answer)["choices"][0]["message"]["content"]
except urllib.error.HTTPError as error:
    sys.exit(f"{url}: {error.code} {error.read(2000).decode(errors='replace')}")
except OSError as error:
    sys.exit(f"{url}: {error}")
print(f"{url} answered: {text!r}")
