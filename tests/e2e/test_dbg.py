from test_live import *
def test_dbg(console, open_page, many, away, refresh):
    page = open_page(f"{console}/workflows", clock=True)
    page.on("request", lambda r: print("REQ", r.url))
    page.on("response", lambda r: print("RES", r.url, r.status))
    page.on("console", lambda r: print("CON", r.text))
    away(page, answers=False)
    print(page.evaluate("Date.now()"))
    page.clock.run_for(6_000)
    print(page.evaluate("Date.now()"))
    page.wait_for_timeout(2000)
    print(live_line(page).text_content())
    assert 0
