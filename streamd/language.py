"""What streamd knows of languages: names, codes, some English words, ends of sentences, rows.

Nothing else has a list of these, so that captions, files and subtitles agree, for one, on
where a sentence ends.
"""

import re
from collections.abc import Mapping
from unicodedata import category

_LANGUAGES = """
en English, zh Chinese, de German, es Spanish, ru Russian, ko Korean, fr French, ja Japanese,
pt Portuguese, tr Turkish, pl Polish, ca Catalan, nl Dutch, ar Arabic, sv Swedish, it Italian,
id Indonesian, hi Hindi, fi Finnish, vi Vietnamese, he Hebrew, uk Ukrainian, el Greek, ms Malay,
cs Czech, ro Romanian, da Danish, hu Hungarian, ta Tamil, no Norwegian, th Thai, ur Urdu,
hr Croatian, bg Bulgarian, lt Lithuanian, la Latin, mi Maori, ml Malayalam, cy Welsh, sk Slovak,
te Telugu, fa Persian, lv Latvian, bn Bengali, sr Serbian, az Azerbaijani, sl Slovenian,
kn Kannada, et Estonian, mk Macedonian, br Breton, eu Basque, is Icelandic, hy Armenian,
ne Nepali, mn Mongolian, bs Bosnian, kk Kazakh, sq Albanian, sw Swahili, gl Galician,
mr Marathi, pa Punjabi, si Sinhala, km Khmer, sn Shona, yo Yoruba, so Somali, af Afrikaans,
oc Occitan, ka Georgian, be Belarusian, tg Tajik, sd Sindhi, gu Gujarati, am Amharic,
yi Yiddish, lo Lao, uz Uzbek, fo Faroese, ht Haitian Creole, ps Pashto, tk Turkmen, nn Nynorsk,
mt Maltese, sa Sanskrit, lb Luxembourgish, my Myanmar, bo Tibetan, tl Tagalog, mg Malagasy,
as Assamese, tt Tatar, haw Hawaiian, ln Lingala, ha Hausa, ba Bashkir, jw Javanese,
su Sundanese, yue Cantonese, my Burmese, ca Valencian, nl Flemish, ht Haitian,
lb Letzeburgesch, ps Pushto, pa Panjabi, ro Moldavian, ro Moldovan, si Sinhalese,
es Castilian, zh Mandarin, de Deutsch, es Español, fr Français, pt Português, it Italiano,
nl Nederlands, pl Polski, tr Türkçe, sv Svenska, da Dansk, no Norsk, fi Suomi, cs Čeština,
ro Română, hu Magyar, id Bahasa Indonesia, vi Tiếng Việt, ru Русский, uk Українська, el Ελληνικά,
he עברית, ar العربية, fa فارسی, hi हिन्दी, th ไทย, ja 日本語, ko 한국어, zh 中文
"""
LANGUAGE_CODES: Mapping[str, str] = {
    name.casefold(): code
    for code, _, name in (entry.strip().partition(" ") for entry in _LANGUAGES.split(","))
}
"""Names in lower case and codes, as openai-whisper has them; codes in the order of their tokens. At
the end, what the most frequent ones call themselves."""
LANGUAGES = tuple(dict.fromkeys(LANGUAGE_CODES.values()))
"""In the order of their tokens; models before large-v3 lack the last one."""
SPACELESS = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages that are written without blanks between words."""

_TAGS = """
af afr, am amh, ar ara, as asm, az aze, ba bak, be bel, bg bul, bn ben, bo bod tib, br bre, bs bos,
ca cat, cs ces cze, cy cym wel, da dan, de deu ger, el ell gre, en eng, es spa, et est, eu eus baq,
fa fas per, fi fin, fo fao, fr fra fre, gl glg, gu guj, ha hau, he heb iw, hi hin, hr hrv, ht hat,
hu hun, hy hye arm, id ind in, is isl ice, it ita, ja jpn, jw jav jv, ka kat geo, kk kaz, km khm,
kn kan, ko kor, la lat, lb ltz, ln lin, lo lao, lt lit, lv lav, mg mlg, mi mri mao, mk mkd mac,
ml mal, mn mon, mr mar, ms msa may, mt mlt, my mya bur, ne nep, nl nld dut, nn nno, no nor nob nb,
oc oci, pa pan, pl pol, ps pus, pt por, ro ron rum, ru rus, sa san, sd snd, si sin, sk slk slo,
sl slv, sn sna, so som, sq sqi alb, sr srp, su sun, sv swe, sw swa, ta tam, te tel, tg tgk, th tha,
tk tuk, tl tgl fil, tr tur, tt tat, uk ukr, ur urd, uz uzb, vi vie, yi yid, yo yor, zh zho chi cmn
"""
_CODES = {tag: code for code, *tags in map(str.split, _TAGS.split(",")) for tag in tags}
"""Whisper's codes by those of ISO 639-2 in containers, and by what else is used for them."""


def language_of(tag: str) -> str:
    """Return Whisper's code of the language that a track's tag names, or "" if there is none."""
    first = tag.casefold().replace("_", "-").partition("-")[0].strip()
    code = _CODES.get(first) or LANGUAGE_CODES.get(first, first)
    return code if code in LANGUAGE_CODES.values() else ""


UNFINISHED = frozenset(
    word
    for line in (
        "a an and as at because but by er for from if in into my of on or our so than that",
        "the their this to uh um with your",
    )
    for word in line.split()
)
"""English words that do not end a sentence; a speaker who stops here is thinking."""
BINDING = UNFINISHED | frozenset(
    word
    for line in (
        "am are be been can could did do does had has have i is may might must no not shall she",
        "should some very was we were when where which who whose will would you he they it its his",
        "her any every between through under over into about after before",
    )
    for word in line.split()
)
"""English words that belong to the one after them."""
OPENING = frozenset(
    word
    for line in (
        "although and as at because before but by for from if in into nor on or since so than that",
        "though through unless until when where whether which while who whose with without",
    )
    for word in line.split()
)
"""English words that begin a clause or a phrase."""

_ENDS = (*".?!。．？！｡؟۔।॥։።။។‽",)
_CLOSING = "\"'”’“‘»«›‹)]）］」』】〉》 "
"""What may follow the mark that ends a sentence. In German, “ and « close."""
_TRAILING_OFF = re.compile(r"(?:…|[.。]\s*[.。])$")
_LAST_WORD = re.compile(r"[^\s\"'“„‘«»(\[—]*$")
_ABBREVIATIONS = frozenset(
    (
        *("capt", "col", "dr", "e.g", "gen", "gov", "i.e", "lt", "mr", "mrs", "ms", "mt", "prof"),
        *("rev", "sen", "sgt", "st", "vs"),
    )
)
"""In lower case, those that mostly stand before something; "no." is rather an answer."""
_LONGEST = 20
"""Characters, more than an abbreviation has."""
_INITIALS = re.compile(r"(?!I$)[^\W\d_](\.[^\W\d_])*")


def ends_sentence(text: str) -> bool:
    """Whether a sentence ends with the last character of a text, or before closing quotes.

    It does not with an ellipsis, where the speaker breaks off, nor with the full stop of a title
    ("Dr."), an initial ("George W.") or an abbreviation of capitals ("the U.S."): more follows
    mostly. What is doubtful ends none, since a caption then only stays open a little longer.
    """
    text = text.rstrip(_CLOSING)
    if not text.endswith(_ENDS) or _TRAILING_OFF.search(text):
        return False
    last = _LAST_WORD.search(text[-_LONGEST:-1])
    word = last[0] if last and text[-1] == "." else ""
    is_initials = word.isupper() and _INITIALS.fullmatch(word)
    return word.lower() not in _ABBREVIATIONS and not is_initials


_NO_START = frozenset("、。，．：；？！」』）】〉》・ーっゃゅょッャュョ々…")
"""No row begins with these (JIS X 4051)."""
_NO_END = frozenset("「『（【〈《")
"""No row ends with these."""
_BEHIND = frozenset("ะาำๅๆฯະາຳຽໆຯ\u200d")
"""Vowels and marks of Thai and Lao behind their consonant, which are letters in Unicode, and the
joiner of emoji."""
_BEFORE = frozenset("เแโใไເແໂໃໄ\u1039\u17d2\u200d")
"""Vowels of Thai and Lao before their consonant, and what puts the next consonant under the one
before it in Burmese and Khmer."""
_ASAT = "\u103a"
"""Says in Burmese that the letter before it ends a syllable."""


def belongs(before: str, after: str) -> bool:
    """Whether no row should end between two texts without a blank between them.

    One of the two is a vowel or mark of the other's letter, or punctuation that stays with a word.
    """
    first, last = after[:1], before[-1:]
    is_mark = first in _BEHIND or first in _NO_START or category(first or " ").startswith("M")
    return is_mark or after[1:2] == _ASAT or last in _BEFORE or last in _NO_END


STOPS = ".?!。？！"
COMMAS = ",，、"
MARKS = STOPS + COMMAS + ";:；："
"""What a model may write right behind a word. To Whisper, the full-width ones are two or three
tokens."""


def is_mark(text: str) -> bool:
    """Whether the text is one of the marks and nothing else."""
    return len(text) == 1 and text in MARKS


FAMOUS = frozenset(
    "".join(filter(str.isalnum, phrase.casefold()))
    for phrase in (
        *("you", "thank you", "thank you very much", "thank you so much", "bye", "bye bye"),
        *("thank you for watching", "thank you so much for watching", "thanks for watching"),
        *("please subscribe to my channel", "music", "applause"),
        *("subtitles by the Amara.org community", "Untertitel der Amara.org-Community"),
        *("danke", "vielen Dank", "vielen Dank fürs Zuschauen", "tschüss", "Musik"),
        *("Untertitel im Auftrag des ZDF für funk 2017", "gracias", "gracias por ver el video"),
        *("subtítulos realizados por la comunidad de Amara.org", "adiós", "música", "merci"),
        *("merci d'avoir regardé cette vidéo", "au revoir", "musique", "sous-titrage ST' 501"),
        *("sous-titres réalisés par la communauté d'Amara.org", "grazie", "ciao", "musica"),
        *("grazie per la visione", "sottotitoli creati dalla comunità Amara.org", "obrigado"),
        *("obrigada", "obrigado por assistir", "tchau", "legendas pela comunidade Amara.org"),
        *("продолжение следует", "ご視聴ありがとうございました", "ありがとうございました"),
        *("おやすみなさい", "音楽", "감사합니다", "시청해주셔서 감사합니다", "고맙습니다", "음악"),
        *("谢谢", "谢谢大家", "谢谢观看", "字幕by索兰娅", "音乐"),
    )
)
"""What models such as Whisper write for sounds without speech: they have learnt it from the ends of
subtitled videos."""
FAMOUS_NO_SPEECH = 0.35
"""Above this probability of no speech such a phrase is not believed: tiny.en writes "Thank you."
with 0.39 in music, and with 0.61 to 0.70 in coughs."""


def is_famous(text: str) -> bool:
    """Whether the text is one of these phrases, or one of them again and again."""
    letters = "".join(filter(str.isalnum, text.casefold()))
    return any(
        len(letters) % len(phrase) == 0 and phrase * (len(letters) // len(phrase)) == letters
        for phrase in FAMOUS
        if letters
    )
