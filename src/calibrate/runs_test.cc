#include "calibrate/runs.h"

#include <doctest/doctest.h>

#include <fmt/core.h>

#include "base/error.h"
#include "base/test_close_to.h"
#include "base/test_thrown_by.h"
#include "base/text.h"
#include "calibrate/test_runs.h"

using namespace mw;
using namespace mw::calibrate;

namespace {

const std::string kHeader =
    "source,model,params_b,layers,hidden,heads,kv_heads,ffn,seq,vocab,moe,gpu,gpus,tp,sp,cp,pp,vpp,"
    "ep,dp,zero,micro_batch,global_batch,recompute,precision,metric,value,unit,nic_GBps,schedule,"
    "overlap,software,memory_GiB,notes,use\n";
const std::string kRow =
    "\"A paper; tables 1, 2\",GPT,1,2,64,4,4,256,128,512,,chip,4,2,1,1,2,1,1,1,0,,8,full,fp16,"
    "iteration_time,1.5,s,,1f1b,,megatron,,\"says \"\"so\"\"\",fit\n";

// The row with another cell.
std::string with(std::string_view column, std::string_view cell, const std::string& row = kRow) {
  const std::vector<std::string_view> names = split(trim(kHeader), ',');
  // The first cell has the row's one quoted comma.
  size_t at = row.find('"', 1);
  for (const std::string_view name : names) {
    if (name == column) break;
    at = row.find(',', at) + 1;
  }
  return row.substr(0, at) + std::string(cell) + row.substr(row.find_first_of(",\n", at));
}

}  // namespace

TEST_CASE("a row keeps its cells; what is not said is 0") {
  const std::vector<Run> runs = parse_runs(kHeader + kRow, "runs.csv");
  REQUIRE(runs.size() == 1);
  const Run& run = runs[0];
  CHECK(run.source == "A paper; tables 1, 2");
  CHECK(source_name(run.source) == "A paper");
  CHECK(source_name("") == "(no source)");
  CHECK(run.line == 2);
  CHECK(run.tp == 2);
  CHECK(run.sp);
  CHECK(run.micro_batch == 0);
  CHECK(run.memory_GiB == 0);
  CHECK(run.value == 1.5);
  CHECK(run.fits());
  CHECK(run.columns[33].second == "says \"so\"");
}

TEST_CASE("a byte order mark, line ends of two bytes and quoted line ends are read") {
  std::string row = kRow;
  row.replace(row.find("says "), 5, "says,\nin two lines: ");
  const std::string text = "\xEF\xBB\xBF" + kHeader + row + "\n" + kRow + "a,b\n";
  CHECK_THROWS_WITH_AS(parse_runs(text, "runs.csv"),
                       "runs.csv:6: has 2 cells, must have the header's 35", Error);
  const std::string windows = replace_all(text.substr(0, text.size() - 4), "\n", "\r\n");
  const std::vector<Run> runs = parse_runs(windows, "runs.csv");
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].columns[33].second == "says,\r\nin two lines: \"so\"");
  CHECK(runs[0].line == 2);
  CHECK(runs[1].line == 5);
  CHECK(runs[1].use == "fit");
}

TEST_CASE("a quote that is not closed is told where it stands") {
  std::string row = kRow;
  row.replace(row.find("so\"\"\""), 5, "so");
  const std::string finding =
      "runs.csv:3: the cell \"says \"so,fit has no closing quote before a ',' or the end of a "
      "line; "
      "double the quotes inside of it";
  CHECK_THROWS_WITH_AS(parse_runs(kHeader + kRow + row, "runs.csv"), finding.c_str(), Error);
  CHECK_THROWS_WITH_AS(parse_runs(kHeader + kRow + row + kRow, "runs.csv"), finding.c_str(), Error);
}

TEST_CASE("all findings of a file are told together, by line and column") {
  std::string bad = kRow;
  bad.replace(bad.find(",full,"), 6, ",half,");
  bad.replace(bad.find(",2,64,"), 6, ",x,64,");
  CHECK_THROWS_WITH_AS(
      parse_runs(kHeader + "a,b\n" + kRow + bad + "c\n", "runs.csv"),
      "runs.csv:2: has 2 cells, must have the header's 35\n"
      "runs.csv:4: recompute: must be one of none, selective, full, unknown, empty, is "
      "\"half\"\nruns.csv:4: layers: must be an integer of at least 1, is \"x\"\n"
      "runs.csv:5: has 1 cells, must have the header's 35",
      Error);
}

TEST_CASE("rows that are only compared keep what is wrong with them, and the file is read") {
  struct Case {
    const char *column, *cell, *finding;
  };
  std::string text = kHeader + kRow;
  const std::vector<Case> cases = {
      {"recompute", "half",
       "recompute: must be one of none, selective, full, unknown, empty, is \"half\""},
      {"layers", "", "layers: must be an integer of at least 1, is \"\""},
      {"seq", "", "seq: must be an integer of at least 1, is \"\""},
      {"vocab", "-1", "vocab: must be an integer of at least 1, is \"-1\""},
      {"gpus", "", "gpus: must be an integer of at least 1, is \"\""},
      {"params_b", "8B", "params_b: must be a positive number, is \"8B\""},
      {"metric", "iteration-time",
       "metric: must be one of iteration_time, hw_tflops_per_gpu, model_tflops_per_gpu, mfu, "
       "tokens_per_s_per_gpu, sequences_per_s, place, is \"iteration-time\""},
      {"metric", "",
       "metric: must be one of iteration_time, hw_tflops_per_gpu, model_tflops_per_gpu, mfu, "
       "tokens_per_s_per_gpu, sequences_per_s, place, is \"\""},
      {"unit", "h", "unit: must be one of s, ms, min, is \"h\""},
      {"value", "-3", "value: must be a positive number, is \"-3\""},
      {"use", "test", "use: must be one of fit, check, is \"test\""}};
  for (const Case& c : cases) text += with(c.column, c.cell);
  const std::vector<Run> runs = parse_rows(text + "a,b\n" + kRow, "runs.csv");
  REQUIRE(runs.size() == cases.size() + 3);
  CHECK(runs.front().findings.empty());
  CHECK(runs.back().findings.empty());
  for (size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(cases[i].column);
    CHECK(runs[i + 1].findings == std::vector<std::string>{cases[i].finding});
    CHECK(runs[i + 1].line == static_cast<int>(i) + 3);
    CHECK(mw::test::thrown_by([&] {
            parse_runs(kHeader + with(cases[i].column, cases[i].cell), "runs.csv");
          }) == std::string("runs.csv:2: ") + cases[i].finding);
  }
  const Run& odd = runs[cases.size() + 1];
  CHECK(odd.findings == std::vector<std::string>{"has 2 cells, must have the header's 35"});
  CHECK(odd.source == "a");
  CHECK(reason(odd, {}) == odd.findings[0]);
  REQUIRE(odd.columns.size() == 35);
  CHECK(odd.columns[1] == std::pair<std::string, std::string>("model", "b"));
  CHECK(odd.columns[34] == std::pair<std::string, std::string>("use", ""));
  CHECK(mw::test::thrown_by([] { parse_rows(kHeader, "runs.csv"); }) == "runs.csv: has no runs");
}

TEST_CASE("a cell that is empty has its usual value where there is one, and the row says so") {
  struct Case {
    std::vector<std::pair<const char*, const char*>> cells;
    std::vector<std::string> usual, findings;
    int64_t kv_heads, ffn;
  };
  const std::string no_ffn =
      "ffn: must be given for a Llama's blocks, which have no usual width, "
      "is \"\"";
  for (const Case& c : std::vector<Case>{
           {{{"kv_heads", ""}}, {"kv_heads 4"}, {}, 4, 256},
           {{{"ffn", ""}}, {"ffn 256"}, {}, 4, 256},
           {{{"use", ""}}, {"use check"}, {}, 4, 256},
           {{{"kv_heads", ""}, {"ffn", ""}}, {"kv_heads 4", "ffn 256"}, {}, 4, 256},
           {{{"model", "llama"}, {"ffn", ""}}, {}, {no_ffn}, 4, 0},
           {{{"model", "other"}, {"ffn", ""}, {"kv_heads", "2"}, {"params_b", ""}},
            {},
            {no_ffn},
            2,
            0},
           {{{"model", "other"}, {"ffn", ""}, {"params_b", ""}}, {"ffn 256"}, {}, 4, 256},
           {{{"moe", "E8k2s0f96"}, {"ffn", ""}}, {"ffn 96"}, {}, 4, 96},
           {{{"moe", "E8k2s0f96;1 dense"}, {"ffn", ""}}, {}, {no_ffn}, 4, 0}}) {
    std::string row = kRow;
    for (const auto& [column, cell] : c.cells) row = with(column, cell, row);
    CAPTURE(row);
    const Run run = parse_rows(kHeader + row, "runs.csv", {{}, published_families()})[0];
    CHECK(run.usual == c.usual);
    CHECK(run.findings == c.findings);
    CHECK(run.kv_heads == c.kv_heads);
    CHECK(run.ffn == c.ffn);
    CHECK(run.fits() == (c.cells[0].first != std::string("use")));
  }
}

TEST_CASE("a row that publishes nothing may be compared but not fitted on, nor one of no use") {
  const std::string silent = with("unit", "", with("metric", "", with("value", "")));
  for (const std::string& row : {with("value", ""), silent}) {
    const Run run = parse_rows(kHeader + row, "runs.csv")[0];
    CHECK(run.findings.empty());
    CHECK(run.value == 0);
    CHECK(mw::test::thrown_by([&] { parse_runs(kHeader + row, "runs.csv"); }) ==
          "runs.csv:2: value: must be a positive number, is \"\"");
  }
  CHECK(mw::test::thrown_by([&] { parse_runs(kHeader + with("use", ""), "runs.csv"); }) ==
        "runs.csv:2: use: must be one of fit, check, is \"\"");
}

TEST_CASE("an empty recompute was not published: it is unknown, and the column stays empty") {
  std::string row = kRow;
  row.replace(row.find(",full,"), 6, ",,");
  const std::vector<Run> runs = parse_runs(kHeader + row, "runs.csv");
  CHECK(runs[0].recompute == "unknown");
  CHECK(runs[0].columns[23].second.empty());
}

TEST_CASE("an empty cell of sp, cp, vpp, ep or zero is what is usual, and the row says so") {
  std::string row = kRow;
  row.replace(row.find(",4,2,1,1,2,1,1,1,0,,8"), 21, ",4,2,,,2,,,1,,,8");
  const std::vector<Run> runs = parse_runs(kHeader + row, "runs.csv");
  REQUIRE(runs.size() == 1);
  const Run& run = runs[0];
  CHECK(run.usual == std::vector<std::string>{"cp 1", "vpp 1", "ep 1", "zero 0", "sp 0"});
  CHECK(!run.sp);
  CHECK(run.cp == 1);
  CHECK(run.vpp == 1);
  CHECK(run.ep == 1);
  CHECK(run.zero == 0);
  CHECK(parse_runs(kHeader + kRow, "runs.csv")[0].usual.empty());
}

TEST_CASE("a value is read in its unit; what is no unit of the metric is a finding") {
  const auto read = [](const char* metric, const char* value, const char* unit) {
    std::string row = kRow;
    const std::string was = "iteration_time,1.5,s,";
    row.replace(row.find(was), was.size(), fmt::format("{},{},{},", metric, value, unit));
    return parse_runs(kHeader + row, "runs.csv")[0].value;
  };
  CHECK(read("iteration_time", "3528", "ms") == mw::test::close_to(3.528));
  CHECK(read("iteration_time", "2", "min") == 120);
  CHECK(read("hw_tflops_per_gpu", "0.137", "PFLOP/s") == mw::test::close_to(137));
  CHECK(read("model_tflops_per_gpu", "137000", "GFLOP/s") == mw::test::close_to(137));
  CHECK(read("mfu", "0.44", "fraction") == mw::test::close_to(44));
  CHECK(read("mfu", "44", "%") == 44);
  CHECK(read("tokens_per_s_per_gpu", "3.9", "ktok/s") == mw::test::close_to(3900));
  CHECK(read("place", "2", "") == 2);
  CHECK_THROWS_WITH_AS(read("iteration_time", "1", "furlongs"),
                       "runs.csv:2: unit: must be one of s, ms, min, is \"furlongs\"", Error);
  CHECK_THROWS_WITH_AS(read("mfu", "44", "fraction"),
                       "runs.csv:2: value: must be at most the peak, is \"44\"", Error);
  CHECK_THROWS_WITH_AS(read("mfu", "200", "%"),
                       "runs.csv:2: value: must be at most the peak, is \"200\"", Error);
  CHECK_THROWS_WITH_AS(read("mfu", "0.44", ""),
                       "runs.csv:2: unit: must be one of %, fraction, is \"\"", Error);
}

TEST_CASE("a long name is told by its ending") {
  CHECK(ending_of("abcdefgh", 8) == "abcdefgh");
  CHECK(ending_of("abcdefghi", 8) == "...efghi");
}

TEST_CASE("sp is 0 or 1, a value is finite") {
  std::string bad = kRow;
  bad.replace(bad.find(",4,2,1,1,2,"), 11, ",4,2,2,1,2,");
  bad.replace(bad.find(",1.5,s,,"), 8, ",inf,s,1e-300,");
  CHECK(mw::test::thrown_by([&] { parse_runs(kHeader + bad, "runs.csv"); }) ==
        "runs.csv:2: sp: must be at most 1, is \"2\"\n"
        "runs.csv:2: value: must be from 1e-12 to 1e+12, is \"inf\"\n"
        "runs.csv:2: nic_GBps: must be from 1e-09 to 1e+09, is \"1e-300\"");
}

TEST_CASE("sizes are at most those of a model's config.json") {
  std::string bad = kRow;
  bad.replace(bad.find(",2,64,4,4,256,128,512,"), 22,
              ",16385,1048577,16385,16385,4194305,67108865,67108865,");
  CHECK(mw::test::thrown_by([&] { parse_runs(kHeader + bad, "runs.csv"); }) ==
        "runs.csv:2: layers: must be at most 16384, is \"16385\"\n"
        "runs.csv:2: hidden: must be at most 1048576, is \"1048577\"\n"
        "runs.csv:2: heads: must be at most 16384, is \"16385\"\n"
        "runs.csv:2: kv_heads: must be at most 16384, is \"16385\"\n"
        "runs.csv:2: ffn: must be at most 4194304, is \"4194305\"\n"
        "runs.csv:2: seq: must be at most 67108864, is \"67108865\"\n"
        "runs.csv:2: vocab: must be at most 67108864, is \"67108865\"");
}

TEST_CASE("what divides a run is at most the ranks of a plan") {
  std::string bad = kRow;
  bad.replace(bad.find(",4,2,1,1,2,1,1,1,0,,8,"), 22,
              ",1048577,1048577,1,1048577,1048577,1048577,1048577,1048577,0,4294967296,1048577,");
  CHECK(mw::test::thrown_by([&] { parse_runs(kHeader + bad, "runs.csv"); }) ==
        "runs.csv:2: gpus: must be at most 1048576, is \"1048577\"\n"
        "runs.csv:2: cp: must be at most 1048576, is \"1048577\"\n"
        "runs.csv:2: tp: must be at most 1048576, is \"1048577\"\n"
        "runs.csv:2: pp: must be at most 1048576, is \"1048577\"\n"
        "runs.csv:2: vpp: must be at most 1048576, is \"1048577\"\n"
        "runs.csv:2: ep: must be at most 1048576, is \"1048577\"\n"
        "runs.csv:2: dp: must be at most 1048576, is \"1048577\"\n"
        "runs.csv:2: micro_batch: must be at most 1048576, is \"4294967296\"\n"
        "runs.csv:2: global_batch: must be at most 1048576, is \"1048577\"");
}

TEST_CASE("an unknown schedule or overlap is a finding") {
  std::string bad = kRow;
  bad.replace(bad.find(",1f1b,,"), 7, ",1F1B,colectives,");
  try {
    parse_runs(kHeader + bad, "runs.csv");
    FAIL("no error");
  } catch (const Error& error) {
    const std::string text = error.what();
    CHECK(text.find("runs.csv:2: schedule: must be one of 1f1b, gpipe, ") == 0);
    CHECK(text.find(", zb-2p, empty, is \"1F1B\"\n") != std::string::npos);
    CHECK(text.find("runs.csv:2: overlap: must be one of messages, ") != std::string::npos);
    CHECK(text.find("no-scatter-gather, post-validation, empty, is \"colectives\"") !=
          std::string::npos);
  }
}

TEST_CASE("a column that is missing is named, with the near miss") {
  std::string header = kHeader;
  header.replace(header.find("hidden"), 6, "hiden");
  CHECK_THROWS_WITH_AS(parse_runs(header + kRow, "runs.csv"),
                       "runs.csv:1: there is no column 'hidden', did you mean 'hiden'?", Error);
}

TEST_CASE("columns whose cells may be empty may be left out, and then are") {
  const std::string header =
      "gpu,gpus,layers,hidden,heads,seq,vocab,global_batch,metric,value,unit,notes\n";
  const std::string row = "chip,4,2,64,4,128,512,8,iteration_time,1.5,s,as it was\n";
  const Run run = parse_rows(header + row, "runs.csv").front();
  std::string empty = kRow;
  for (const char* column :
       {"model",   "params_b",    "kv_heads",   "ffn",       "moe",      "tp",
        "sp",      "cp",          "pp",         "vpp",       "ep",       "dp",
        "zero",    "micro_batch", "recompute",  "precision", "nic_GBps", "schedule",
        "overlap", "software",    "memory_GiB", "use"})
    empty = with(column, "", empty);
  const Run same = parse_rows(kHeader + empty, "runs.csv").front();
  CHECK(run.findings.empty());
  CHECK(run.usual == same.usual);
  CHECK(run.ffn == 256);
  CHECK(run.value == same.value);
  CHECK(run.recompute == "unknown");
  CHECK_THROWS_WITH_AS(parse_rows("recomput," + header + "full," + row, "runs.csv"),
                       "runs.csv:1: runs have no column 'recomput', did you mean 'recompute'?",
                       Error);
}

TEST_CASE("a file without a line is empty, and nothing else is wrong with it") {
  CHECK_THROWS_WITH_AS(
      parse_runs("", "runs.csv"),
      doctest::Contains(
          "runs.csv: is empty; it must begin with the columns' names, layers, hidden"),
      Error);
}

TEST_CASE("a column that is there twice is refused, one that no run has too") {
  CHECK_THROWS_WITH_AS(
      parse_runs("hidden,tp,my own,my own,notes," + kHeader + "1,1,2,3,," + kRow, "runs.csv"),
      "runs.csv:1: there are 2 columns 'hidden'; leave one\n"
      "runs.csv:1: there are 2 columns 'tp'; leave one\n"
      "runs.csv:1: there are 2 columns 'my own'; leave one\n"
      "runs.csv:1: there are 2 columns 'notes'; leave one",
      Error);
}

TEST_CASE("an amendment is read in place of the cell of its source's rows; the columns stay") {
  const std::vector<Amendment> amendments = parse_amendments(
      "source,column,inferred,value,reason\nA paper,recompute,full,unknown,\"too fast, for "
      "that\"\nA book,recompute,full,none,it says so\n",
      "amendments.csv");
  REQUIRE(amendments.size() == 2);
  std::string stated = kRow;
  stated.replace(stated.find(",full,"), 6, ",selective,");
  std::string other = kRow;
  other.replace(0, 8, "\"A letter");
  const std::vector<Run> runs =
      parse_runs(kHeader + kRow + stated + other, "runs.csv", {amendments, {}});
  REQUIRE(runs.size() == 3);
  CHECK(runs[0].recompute == "unknown");
  CHECK(runs[0].amended == "recompute unknown: too fast, for that");
  CHECK(runs[0].columns[23].second == "full");
  CHECK(runs[1].recompute == "selective");
  CHECK(runs[1].amended.empty());
  CHECK(runs[2].recompute == "full");
}

TEST_CASE("amendments without a reason or a column are told") {
  CHECK_THROWS_WITH_AS(
      parse_amendments("source,column,inferred,value,reason\nA paper,recomputes,full,none,\n",
                       "a.csv"),
      "a.csv:2: column: runs have no column 'recomputes'\na.csv:2: reason: must be given", Error);
}

TEST_CASE("chunks that are unknown and tied embeddings have cells, or words of the notes") {
  const std::string header =
      "gpu,gpus,layers,hidden,heads,seq,vocab,global_batch,metric,value,unit,vpp,tied,notes\n";
  const std::string row = "chip,4,2,64,4,128,512,8,iteration_time,1.5,s,";
  struct Case {
    const char* cells;
    bool vpp_unknown;
    std::optional<bool> tied;
  };
  for (const Case& c : std::vector<Case>{{"1,,as it was", false, std::nullopt},
                                         {"unknown,,", true, std::nullopt},
                                         {",0,", false, false},
                                         {"1,1,", false, true},
                                         {"1,,t inferred; vpp not stated", true, std::nullopt},
                                         {"1,,MBS and VPP not published", true, std::nullopt},
                                         {"1,,untied embeddings: its script", false, false},
                                         {"1,1,untied embeddings: not these", false, true}}) {
    CAPTURE(c.cells);
    const Run run = parse_rows(header + row + c.cells + "\n", "runs.csv").front();
    CHECK(run.findings.empty());
    CHECK(run.vpp == 1);
    CHECK(run.vpp_unknown == c.vpp_unknown);
    CHECK(run.tied == c.tied);
  }
  const Run bad = parse_rows(header + row + "?,2,\n", "runs.csv").front();
  CHECK(bad.findings ==
        std::vector<std::string>{"tied: must be at most 1, is \"2\"",
                                 "vpp: must be an integer of at least 1, is \"?\""});
}

TEST_CASE("a row has its family by its model's name, or of its latent attention") {
  const RunFacts facts{{}, published_families()};
  const auto family = [&](const char* name, const char* moe) {
    const std::string row = with("moe", moe, with("model", name));
    const std::optional<ModelFamily> made =
        parse_rows(kHeader + row, "runs.csv", facts).front().family;
    return made ? made->name : "";
  };
  CHECK(family("gpt-oss-20b", "") == "GPT-OSS");
  CHECK(family("Megatron", "") == "");
  CHECK(family("DeepSeek-V2", "E8k2s0f96") == "DeepSeek");
  CHECK(family("DeepSeek-V3", "E8k2s0f96;MLA") == "DeepSeek-V3");
  CHECK(family("Kimi-K2", "E8k2s0f96;MLA") == "DeepSeek-V3");
  const Run run = parse_rows(kHeader + with("moe", "E8k2s0f96;MLA"), "runs.csv").front();
  CHECK(!run.family.has_value());
}
