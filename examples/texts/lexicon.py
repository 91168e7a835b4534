"""The words that the texts are made of. All tasks share them, so that fine-tuning rewires and adds no words."""

words = str.split

POSITIVE = words(
    "delicious wonderful superb lovely charming brilliant delightful excellent friendly fresh tasty cheerful"
)
NEGATIVE = words("awful bland rude terrible stale dreadful gloomy horrible dirty boring nasty tedious")
NEUTRAL = words("ordinary typical average usual plain common standard regular normal familiar moderate medium")
THINGS = words("soup staff film room music service story garden hotel bread wine plot")
SUBJECTS = {
    "sport": words("goalkeeper referee tennis stadium coach league striker marathon"),
    "politics": words("senate minister election parliament treaty ballot mayor embassy"),
    "science": words("telescope molecule laboratory genome physicist asteroid enzyme neutron"),
    "finance": words("shares dividend bank inflation broker mortgage currency audit"),
    "health": words("nurse vaccine surgery clinic fever diabetes patient therapy"),
    "travel": words("airport passport luggage cruise beach visa itinerary souvenir"),
    "computing": words("software keyboard server compiler browser database laptop firewall"),
    "farming": words("harvest tractor barley orchard livestock fertilizer wheat meadow"),
}
NOUNS = words("dog cat bird horse child farmer nurse pilot teacher singer driver baker")
PLURALS = words("dogs cats birds horses children farmers nurses pilots teachers singers drivers bakers")
VERBS = words("run sleep sing swim laugh wait dance jump smile work")
PAST = words("chased helped followed greeted pushed watched warned thanked")
ADJECTIVES = words("old young small tall quiet happy tired brave")
PREPOSITIONS = words("near behind beside with opposite")
PREDICATES = ["very late", "in a hurry", "almost ready", "often here", "hard to find"]
NUMBERS = words("zero one two three four five six seven eight nine ten eleven twelve")
GOODS = words("apples pears coins books stamps marbles cards shells")
NAMES = words("anna ben clara david emma felix grace henry")
LEADS = [
    "yesterday ,",
    "honestly ,",
    "last week ,",
    "as far as we know ,",
    "to be fair ,",
    "by the way ,",
    "in the end ,",
    "this time ,",
]
TAILS = ["as usual", "this morning", "after all", "so they say", "in town", "on monday"]
