"""Labelled prompts of our own, small enough to train on in a test."""

import json

SUBJECTS = {
    "baking": (
        "home",
        "sourdough bread; pizza dough; apple pie; yeast; flour; oven heat; cake; rye loaf",
        "酸面包; 披萨面团; 苹果派; 酵母; 面粉; 烤箱温度; 蛋糕; 黑麦面包",
    ),
    "cycling": (
        "sport",
        "derailleur; bike chain; disc brake; saddle; flat tyre; gravel bike; spokes; pedals",
        "变速器; 自行车链条; 碟刹; 车座; 爆胎; 公路车; 辐条; 脚踏",
    ),
    "tenancy": (
        "law",
        "landlord; rent increase; deposit; eviction; lease; subletting; notice period; tenant",
        "房东; 涨房租; 押金; 驱逐; 租约; 转租; 通知期限; 租客",
    ),
}
FRAMES = {
    "en": ("how does the {} work", "tell me about {}", "my {} went wrong", "what is a {}"),
    "zh": ("{}怎么办", "请介绍{}", "我的{}出问题了", "什么是{}"),
}


def own_rows():
    """192 labelled prompts about three subjects in two languages; the last frame is the test."""
    rows = []
    for label, (domain, english, chinese) in SUBJECTS.items():
        for lang, terms in (("en", english), ("zh", chinese)):
            for term in terms.split("; "):
                rows.extend(
                    {
                        "text": frame.replace("{}", term),
                        "label": label,
                        "lang": lang,
                        "split": "test" if frame == FRAMES[lang][-1] else "train",
                        "domain": domain,
                    }
                    for frame in FRAMES[lang]
                )
    return rows


def write_rows(path, rows):
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
